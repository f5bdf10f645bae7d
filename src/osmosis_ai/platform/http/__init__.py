"""The platform's HTTP: a module per resource, each with its ``router``.

What all of them share: who asks and for which workspace (``authentication``), errors (``errors``), pages of lists
(``paging``), how a path is read (``routing``).
"""
