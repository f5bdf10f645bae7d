"""Charts as SVG made here: no script, no ``style`` attribute, colours by the classes of ``kit.css``.

Each comes with the table of its numbers, and tells series apart by the shape of their marks as well as by colour.
"""
