"""Deciding between runs: is B better than A, by how much, and would more rows tell?

A row of the dataset is the unit of everything: its attempts are averaged, copies of it are one row, and
what two runs say of the same row is taken together. Only ``local_samples`` and ``dataset_columns`` read files.
"""
