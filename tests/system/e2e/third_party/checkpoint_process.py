"""torch saves in a process of its own; the file of one rank is never opened by another process."""

from async_checkpoint import train
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

if __name__ == "__main__":
    train(async_checkpointer_type=AsyncCheckpointerType.PROCESS)
