"""Arrays in files of other formats, referenced without copying them."""
