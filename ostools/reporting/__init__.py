"""Charts of the results and the self-contained HTML report. A chart needs no report: nothing is
imported here.
"""
