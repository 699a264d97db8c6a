"""What is in force: declared in the file or made by the API, as one view that is read without waiting."""
