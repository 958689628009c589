"""Models in use: exported, asked, and given new classes.

facts, model       classes of the rows, their history, the way of the images; all of a model
reading, writing   a model file or folder, read and written; card is its README for people
export             the model of a recorded run; onnx writes its network for other runtimes
classifier         a loaded model that names images; predict prints and writes the names
add                classes added: settings, images (features and memory), old_rows, audit, measure
memory             what a model remembers of the images of its classes
"""
