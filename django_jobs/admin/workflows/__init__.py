"""The pages of workflows: their definitions, and their runs with a picture of the graph."""
