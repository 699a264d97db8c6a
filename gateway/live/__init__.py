"""What a person sees of the gateway as it runs: the document of the live page and its stream."""
