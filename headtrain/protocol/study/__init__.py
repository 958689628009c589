"""A study: the settings of one run, as a frozen value.

    Study
      stream      which classes arrive when, which earlier rows are kept, how long training takes
      start       how the rows of new classes start
      training    loss and optimizer
      closed      further settings of methods in closed form
      top         which blocks of the backbone are trained too; None if only the head is trained

Nothing here imports PyTorch or NumPy, because the command line is made from these fields. Values
that depend on other settings are None until `resolved` fills them in. A setting is *idle* in a run
if it changes nothing there; refusals, records, identities of runs and reports share these `rules`.

From the ground up:

    parts       stream, training, top blocks with EWC and DER++; all parts as one value
    rules       settings by name; idle settings; settings that exclude each other
    study       one run, the run that recorded settings identify, the names of runs
"""
