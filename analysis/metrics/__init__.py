"""Metrics computed from the tables of a record, with definitions and sources.

accuracy     A_all, A_old, A_new, forgetting, transfer; predictions and mistakes of images
efficiency   fewer updates than random rows need; loss spikes and seconds
collapse     NC1 to NC4 and D_LS; `diagnosis` measures them for a head on a cache
evaluation   a model on a folder of images
"""
