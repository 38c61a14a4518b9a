"""Threads and loader workers: how many cores each process uses."""

import os
import shutil
import sys

import cv2
import torch

MAX_WORKERS = 8  # per process, if chosen: more cores of a GPU are often needed by other programs


def set_threads(device: torch.device, workers: int, processes: int = 1) -> None:
    """Sets the threads of this process: its cores, minus one if workers load images, of any number; OpenCV gets one thread.

    On a CPU the network takes most of the time: loading an image costs about a twentieth of a step.
    """
    cv2.setNumThreads(0)
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:  # the user's own number takes precedence
        torch.set_num_threads(max(1, cores_of(processes) - min(workers, 1)))


def choose_workers(
    device: torch.device, processes: int, images: int, image_size: tuple[int, int], folder: str = "/dev/shm"
) -> int:
    """Returns the number of processes that load images for each process of a node, for `workers=none`.

    On a CPU 1, and below 4 cores 0, because a core less for the network costs more than loading does. On a GPU all cores but
    one, at most 8. Never more than the shared memory has room for: `images` of `image_size` are the batches of the node.
    """
    cores = cores_of(processes)
    if device.type == "cpu":
        wanted = 1 if cores >= 4 else 0
    else:
        wanted = max(1, min(MAX_WORKERS, cores - 1))
    if not has_shared_memory(folder):
        return 0
    if not os.path.isdir(folder):  # not Linux
        return wanted
    return min(wanted, shutil.disk_usage(folder).free // shared_memory(1, images, image_size))


def has_shared_memory(folder: str = "/dev/shm") -> bool:
    """Returns whether processes can share memory: some containers have no folder for it, or one that is read-only."""
    return sys.platform != "linux" or os.access(folder, os.W_OK)


def cores_of(processes: int) -> int:
    """Returns the cores for each of the processes of this node, of those that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def shared_memory(workers: int, images: int, image_size: tuple[int, int]) -> int:
    """Returns the bytes of shared memory for three batches (uint8) per worker: two that wait, and one that is in use."""
    return workers * 3 * images * 3 * image_size[0] * image_size[1]
