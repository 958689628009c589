"""Models: export them, classify images with them, add classes to them.

facts, model       facts about classes, history and transform; a model with all its parts
reading, writing   read and write a model file or folder; card writes its README
export             the model of a recorded run; onnx writes its network for other runtimes
classifier         a loaded model; predict classifies images or features
add                add classes: settings, images (features and memory), old_rows, audit, measure
again              repeat an addition with more images, or to merge two models
memory             statistics and features of the images of a model's classes
"""
