"""Code that all commands share.

context                          run commands from other commands
process                          threads and memory; Ctrl+C; one writer per folder
options, study_options           options, most of them made from settings
config                           files of options, and recipes
run_data, model_source           open caches and models for a command
outcome                          print what became of a model
console, results, progress       print results, notes and progress
"""
