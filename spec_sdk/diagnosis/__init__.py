"""What ``task=doctor`` looks at: the machine, what is installed on it, and whether kernels compute what they should."""
