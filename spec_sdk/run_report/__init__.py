"""A page of figures and tables from the files that runs left (``task=report``): reading, grouping, drawing, writing.

Nothing here runs a model. What is read is described in docs/report.md.
"""
