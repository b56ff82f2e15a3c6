"""HTML that needs no network: `page` (templates, scripts inlined once, quoted commands), `section`
(the parts of a report).
"""
