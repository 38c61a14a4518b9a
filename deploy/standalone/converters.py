"""Converts a network for another runtime, in a process of its own, since a converter that crashes would end the program.

deploy/formats.py starts it: `python converters.py FORMAT network.pt2 TARGET metadata.json`. The network is a program of
torch.export with float32 images [1, 3, H, W] as its input and the outputs in the order of "output_names" of the metadata.
It imports nothing of this project, so that it runs in an environment that has only the packages of a converter.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch


def openvino(program, images, target, about):
    """Writes the folder of an OpenVINO model; half stores the weights in 16 bits."""
    sys.modules["openvino_telemetry"] = None  # it sends usage data; OpenVINO works without it
    import openvino as ov

    model = ov.convert_model(program)
    model.reshape(list(images.shape))
    for output, name in zip(model.outputs, about["output_names"], strict=True):
        output.get_tensor().set_names({name})
    ov.save_model(model, target / "model.xml", compress_to_fp16=about["half"])


def ncnn(program, images, target, about):
    """Writes the folder of an ncnn model by pnnx, which reads TorchScript."""
    import pnnx

    os.chdir(target)  # where pnnx writes its files; only model.ncnn.param and model.ncnn.bin are kept
    torch.jit.trace(program.module(), images).save("model.pt")
    pnnx.convert("model.pt", (images,), fp16=about["half"])
    for file in Path().iterdir():
        if not file.name.startswith("model.ncnn."):
            file.unlink()


def litert(program, images, target, about):
    """Writes a .tflite file."""
    import litert_torch

    litert_torch.convert(program.module(), (images,)).export(str(target))


def coreml(program, images, target, about):
    """Writes an .mlpackage for iOS 15, macOS 12 and later."""
    import coremltools as ct

    precision = ct.precision.FLOAT16 if about["half"] else ct.precision.FLOAT32
    model = ct.convert(
        program.run_decompositions({}),
        inputs=[ct.TensorType("images", images.shape)],
        outputs=[ct.TensorType(name) for name in about["output_names"]],
        minimum_deployment_target=ct.target.iOS15,
        compute_precision=precision,
    )
    model.user_defined_metadata["thaw"] = json.dumps(about)
    model.save(str(target))


CONVERTERS = {function.__name__: function for function in (openvino, ncnn, litert, coreml)}


def main(kind, source, target, about):
    """Converts the network in `source`."""
    warnings.simplefilter("ignore")  # the last line that is printed is the error
    program = torch.export.load(source)
    ((images,), _) = program.example_inputs
    CONVERTERS[kind](program, images, Path(target).absolute(), json.loads(Path(about).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(*sys.argv[1:])
