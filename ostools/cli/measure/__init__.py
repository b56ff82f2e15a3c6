"""The commands that measure on a model: `sensitivity` (and the path sum), `profiles` (what is read off the two), `attention`,
`collapse`, `counting`, `behaviour`. Each is declared and done in its file; what is heavy is imported when it runs.
"""
