"""A study: what one run is asked to do, as a frozen value.

    Study
      stream      which classes arrive when, what is kept of earlier ones, how long training takes
      start       how the rows of new classes start
      training    loss and optimizer, and what is corrected after a task
      closed      what closed forms over the stream need beyond that; heads alone
      top         which blocks of the backbone learn as well; None where the head learns alone

Nothing here imports PyTorch or NumPy: the command line is made from these fields. Values that
depend on other settings are None until `resolved` settles them. `rules` says which settings mean
nothing to which run: refusals, records, the identity of runs and reports all ask it.

From the ground up:

    methods     what closed forms, top blocks, EWC and DER++ need
    parts       stream, start, training; all parts as one value
    rules       settings by name; which mean nothing to which run or exclude each other
    study       one run, the run that recorded settings identify, what tells runs apart
"""
