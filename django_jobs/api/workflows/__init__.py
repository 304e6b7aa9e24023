"""Declares workflows, chains and groups, and starts them.

workflow       Workflow: declares the steps of a version, checks them, starts a run
arguments      the arguments of start()
run_options    what using() of a workflow, a chain or a group takes
edges          what a step waits for, and what is upstream of it
"""
