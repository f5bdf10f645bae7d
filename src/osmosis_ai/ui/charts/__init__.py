"""SVG charts without scripts or ``style`` attributes, colored by the classes of ``kit.css``.

Each chart comes with a table of its numbers and distinguishes series by mark shape as well as color.
"""
