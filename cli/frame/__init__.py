"""What commands share.

lazy_group, context              commands that are imported when they are asked for
process                          threads and memory, set before PyTorch is imported
options, study_options, image_options   options; most are made from the settings of a study
config, recipes                  files of options
run_data, model_source           caches and models, opened for a command
console, progress, work_progress what is printed
claim, interruption, failure     one writer per folder; Ctrl+C; errors as one message
"""
