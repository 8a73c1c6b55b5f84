"""`sihg export`: write the trained model of a run in another format."""

import argparse
from pathlib import Path

from sihg.cli.common import add_trust, count, print_warnings
from sihg.cli.terminal import say, show

FORMATS = ("hf", "robustbench", "onnx", "torch-export")
EPILOG = """examples:
  sihg export runs/first --to hf model
  sihg export runs/first --to onnx model.onnx
  sihg export runs/first --to torch-export model.pt2 --checkpoint best
  sihg export runs/cifar10 --to robustbench model_info.json

formats:
  hf            a folder for the Hugging Face hub: model.safetensors, config.json, and a model card that is filled in
                from the records of the run; `sihg.load` and `sihg evaluate` read it back, with the same bits
  robustbench   model_info of RobustBench: a .json file, or a folder for model_info/DATA/NORM/NAME.json; needs an
                evaluation with --attacks natural,standard
  onnx          a file for any batch size; needs pip install 'sihg[onnx]'
  torch-export  a .pt2 file of torch.export for any batch size

What onnx and torch-export write is compared with the model on real samples. The largest difference of a logit is
printed; above 1e-5 (times the largest logit, if that is above 1) it is an error, and no file stays.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export",
        help=summary,
        description="Write the trained model of a run for others: as a folder of the Hugging Face hub with a model "
        "card, as RobustBench's model_info, or as a graph.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder or file to write")
    parser.add_argument("--checkpoint", default="last", metavar="C", help="last or best (default: last)")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT")
    parser.add_argument("--data", metavar="D", help="samples for the comparison (default: the run's test samples)")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--samples", type=count, default=256, metavar="N", help="how many to compare (default: 256)")
    parser.add_argument("--model", metavar="M", help="the architecture, for a run of a model of your own")
    add_trust(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export, and print the files, what to know and what to do next."""
    from sihg.formats import export
    from sihg.formats.export_run import describe_difference

    with print_warnings():
        done = export(
            args.run_folder,
            args.out,
            to=args.to,
            checkpoint=args.checkpoint,
            model=args.model,
            data=args.data,
            data_dir=args.data_dir,
            samples=args.samples,
            overwrite=args.overwrite,
            trust=args.trust,
        )
    for file in done.files:
        show(file)
    if done.difference is not None:
        say(describe_difference(done))
    for note in done.notes:
        say(f"note: {note}")
    if args.to == "hf":
        say(f"next: look at {args.out / 'README.md'}; sihg evaluate {args.out}")
    return 0
