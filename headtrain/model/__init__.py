"""Models: classifiers in use, which predict, are measured, and get classes.

facts, model       facts about classes and history; a model and its verbs
storage            read and write a model file or folder; card writes its README
engine             read images; what computes logits: network (timm) or onnx (a graph)
inputs, images     features or images that are given to a model
predict            classify images or features; evaluation measures
add                add classes: settings, old_rows, growth (rows), audit, addition
again              repeat an addition with more images, or to merge two models
memory             statistics and features of the images of a model's classes
export             the model of a recorded run

Only images, network and export import timm; of the others, only add imports PyTorch. Predictions of
features, and of images by onnx, need neither.
"""
