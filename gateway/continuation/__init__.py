"""What lets a stream go on at another backend after it was interrupted."""
