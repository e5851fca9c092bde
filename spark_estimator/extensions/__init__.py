"""Extensions: features beside the core, each a folder that can be removed without a change of the core's logic.

An extension imports public names of the core only (``tests/test_layers.py`` lists what is left of other imports), and
no other extension. The core imports no extension: public names that are made here load lazily, by the tables of names
(``_HOME``) of the packages that offer them.
"""
