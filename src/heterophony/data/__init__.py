"""Data: read a data set, partition it, and store the federation that results.

- ``sources/``        reads data sets; ``registry.py`` lists them by name, ``formats.py`` users' formats
- ``columns.py``      encodes categories and missing values of tables
- ``source.py``       ``Source``: a data set as it was read
- ``partitions/``     rules that decide which client holds which examples
- ``partitioning.py`` makes a federation of a data set and a partition
- ``client_folders.py`` makes a federation of data that each client has in its own folder
- ``federation.py``   ``Federation``: the clients and their data; ``save`` and ``open`` store it
- ``validation.py``, ``skew.py``, ``transforms.py`` hold out examples, alter each client's examples,
  and convert examples to network input
- ``label_statistics.py`` measures how different the clients' labels are
"""
