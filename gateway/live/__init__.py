"""The live page's view of the running gateway: its document and the stream of that document."""
