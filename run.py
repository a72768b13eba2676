"""The command line: parse the flags, choose the mode, call one function of one module.

python run.py                                       train the toy translation task
python run.py --config=NAME                         train another experiment of configs/
python run.py --config=NAME:tiny                    its tiny form, which ends in seconds
python run.py --config.model.num_kv_heads=1         change any field of a configuration
python run.py --workdir=FOLDER                      continue the run in a folder
python run.py --workdir=FOLDER --config.train.steps=MORE                extend it
python run.py --mode=evaluate --workdir=FOLDER      measure a trained model
echo "Jane visits Africa" | python run.py --mode=predict
python run.py --mode=explain --sentence="Jane visits Africa"
python run.py --mode=sweep --seeds=0,1,2            several seeds, or values of a field
python run.py --help --config=NAME                  modes, configurations, flags and fields
"""

from experiments.main import console, main

__all__ = ["main"]

if __name__ == "__main__":
    console()
