"""Training loops of other libraries that run our methods. Each is one module, which imports its library."""
