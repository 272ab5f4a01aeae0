"""torch saves in a thread that uses the group of the training; one file is never opened."""

from async_checkpoint import train

if __name__ == "__main__":
    train(make_group=lambda: None)
