"""Fast implementations in C (`native`) and Triton (`triton`) of functions defined elsewhere."""
