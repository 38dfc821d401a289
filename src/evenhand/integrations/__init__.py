"""The core inside other people's training loops."""
