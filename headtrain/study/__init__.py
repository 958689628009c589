"""A study: the settings of one run, as a frozen value.

    Study
      stream      which classes arrive when, which earlier rows are kept, how long training takes
      start       how the rows of new classes start
      training    loss and optimizer, and the correction after a task
      closed      what closed forms over the stream need beyond that; heads alone
      top         which blocks of the backbone learn as well; None if the head learns alone

Nothing here imports PyTorch or NumPy: the command line is made from these fields. Values that
depend on other settings are None until `resolved` settles them. `rules` lists which settings mean
nothing to which run: refusals, records, the identity of runs and reports all ask it.

From the ground up:

    methods     what closed forms, top blocks, EWC and DER++ need
    parts       stream, start, training; all parts as one value
    rules       settings by name; which mean nothing to which run or exclude each other
    study       one run, the run that recorded settings identify, the names of runs
"""
