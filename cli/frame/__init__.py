"""Code that all commands share.

lazy_group, context              import commands on demand; run commands from other commands
process                          set threads and memory before PyTorch is imported
options, study_options, image_options   options, most of them made from the settings of a study
config, recipes                  files of options
run_data, model_source           open caches and models for a command
console, results, progress, work_progress   print results, notes and progress
demo_inputs                      handwritten digits for commands that need no data
claim, interruption, failure     one writer per folder; Ctrl+C; errors as one message
"""
