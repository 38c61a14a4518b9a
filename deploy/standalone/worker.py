"""Runs a file of export.py in a process of its own, since a runtime that crashes would end the program that uses it.

deploy/exported_model.py starts it: `python worker.py FILE THREADS`. Requests and replies are arrays on standard input and output.
"""

import io
import json
import os
import sys
import zipfile

import numpy as np


def send(stream, *arrays):
    """Writes arrays to a binary stream."""
    buffer = io.BytesIO()
    np.savez(buffer, *arrays)
    stream.write(len(buffer.getvalue()).to_bytes(8, "little") + buffer.getvalue())
    stream.flush()


def receive(stream):
    """Reads the arrays of one `send`. Raises EOFError if the other process has ended."""
    data = stream.read(int.from_bytes(stream.read(8), "little"))
    try:
        with np.load(io.BytesIO(data)) as arrays:
            return list(arrays.values())
    except (ValueError, zipfile.BadZipFile) as error:  # cut off
        raise EOFError from error


def predict(detector, images, min_score, nms_iou):
    """Returns boxes [n, 4] in pixels of the input, scores [n] and labels [n] per image. NMS is applied only if it is in the file.

    `detector`: a Detector of detector.py; `images`: uint8 [H, W, 3] BGR of any size. Scores below `min_score` are left out.
    """
    if detector.about["outputs"] == "raw":
        found = detector.before_nms(images, min_score)
        return [(boxes, scores.max(1, initial=0).astype(np.float32), scores.argmax(1)) for boxes, scores in found]
    detector.thresholds[:], detector.nms_iou = min_score, nms_iou
    results = []
    for _, _, _, (boxes, scores, labels) in detector.run(images):
        real = labels >= 0
        results.append((boxes[real], scores[real], labels[real]))
    return results


def main(path, threads):
    """Opens the file, and sends its metadata or an error. Then predicts the image of each request, until there is none."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a runtime prints must not come between the arrays
    from detector import Detector  # the file next to this one, which only this process can import so

    try:
        detector = Detector(path, threads=threads)
    except ValueError as error:
        send(replies, np.array(str(error)))
        return
    send(replies, np.array(""), np.array(json.dumps(detector.about)))
    while True:
        try:
            min_score, nms_iou, image = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(replies, *predict(detector, [image], float(min_score), float(nms_iou))[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
