"""Messages between agent, tower and clients: frozen dataclasses of the standard library only.

Rules of this package:

* Each kind of message has its own field. There are no unions of dataclasses.
* A vocabulary that may grow is a `str`. An unknown member of a closed enum becomes OTHER.
* Messages contain ages, not timestamps.
* Every reader ignores unknown fields.
* `__post_init__` checks each bound, so that a decoder reports a violation with its path.
* A field never changes its name: other releases send it, and stores contain it.
"""

PROTOCOL_VERSION = 1
"""This number increases only if an old reader would misunderstand a new message. A new field does
not increase it."""
