"""The program that makes all calls of NVML: they may block for ever in the driver.

Only the standard library and the binding (`pynvml` of nvidia-ml-py) are imported.
"""
