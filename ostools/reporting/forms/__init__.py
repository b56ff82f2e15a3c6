"""The five forms of every chart: `curve`, `profile` (over tokens), `heat`, `bars` (with intervals), `table`.

A form returns the marks of one panel, or the panel. A result's chart says which rows, axes, colours and words they have
(`ostools.reporting.charts`), and what no form can say it adds as marks of its own.
"""
