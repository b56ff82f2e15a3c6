"""What helps: `study` (mitigations against none), `arms` (each of them measured), `verdicts` (what the numbers say),
`windows` (collapse against answers, over window sizes).
"""
