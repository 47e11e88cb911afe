"""infctl: cluster manager and ops toolkit for fleets of SGLang inference workers."""

# read by the build as well; the metadata of the installed package would cost 20 ms a look
__version__ = "0.1.0"
