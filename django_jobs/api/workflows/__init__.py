"""Declares workflows, chains and groups, and starts them.

workflow       Workflow: declares the steps of a version
compositions   chain and group
startable      what they have in common: using(), start()
edges          what a declared step waits for, and what is upstream of it
run_options    the options of one run, and the arguments of start()
new_steps      the rows of a run
definitions    the stored versions
start_jobs     the job type that starts a workflow by name
"""
