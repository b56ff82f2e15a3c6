"""HTML that needs no network: `page` (templates, scripts inlined once), `section` (the parts of a
report), `shell` (quoted commands).
"""
