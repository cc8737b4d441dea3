"""What an answer's text consists of: thoughts, content, and calls of tools. Nothing here knows of HTTP."""
