"""Data: read a data set, partition it, and store the resulting federation.

- ``sources/``         reads data sets; ``registry.py`` lists them by name, ``formats.py`` users' formats
- ``columns.py``       encodes categories and missing values of tables
- ``packing.py``       packs examples that are dicts, tuples or sequences of different lengths
- ``source.py``        ``Source``: a data set before it is partitioned
- ``partitions/``      rules that decide which client holds which examples
- ``partitioning.py``  makes a federation from a data set and a partition; holds out validation examples
- ``folders.py``       reads data that each client has in its own folder
- ``export.py``        writes federations in other platforms' formats
- ``federation.py``    ``Federation``: the clients and their data, how to store and open them, and
  measures of how different the clients' labels are
- ``transforms.py``    converts examples to network input, and alters each client's examples (skew)
"""
