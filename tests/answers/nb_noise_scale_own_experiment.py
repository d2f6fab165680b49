"""Answers to "own_experiment": what a report must hold before its author judges it."""

from answers import right, wrong

QUESTION = "Does the width of the network change the noise scale after five epochs?"
PREDICTION = "It grows with the width, since wider networks fit faster."
MEASUREMENT = "Five seeds: 88 to 117 at width 16, 109 to 123 at width 64."
CONCLUSION = "A little larger for the wider network; the ranges overlap, so more seeds are needed."


def report(question=QUESTION, prediction=PREDICTION, measurement=MEASUREMENT, conclusion=CONCLUSION):
    return {"question": question, "prediction": prediction, "measurement": measurement, "conclusion": conclusion}


for complete in (
    report(),
    report(question="Is it larger? With 0.1 of the labels wrong, after five epochs."),
    report(prediction="No idea, but I guess that it falls."),
    report(measurement="width 16: 93±6, width 64: 116±2"),
    report(conclusion="The prediction was wrong:\nit did not change within the spread of the seeds."),
):
    right("own_experiment")(complete)

for incomplete, bug, says in (
    (report("", "", "", ""), "not-attempted", "question, prediction, measurement, conclusion"),
    (report(..., ..., ..., ...), "not-attempted", ""),
    (report(conclusion=""), "unfinished", "conclusion"),
    (report(prediction=" "), "unfinished", "prediction"),
    (report(measurement="", conclusion=""), "unfinished", "measurement, conclusion"),
    (report(question="?"), "unfinished", "question"),
    ({"question": QUESTION}, "unfinished", "prediction, measurement, conclusion"),
    (report(question="Width and noise scale, after five epochs."), "no-question", ""),
    (report(question="noise?"), "too-short", '"noise?"'),
    (report(prediction="grows"), "too-short", "prediction"),
    (report(measurement="88 and 117"), "too-short", "measurement"),
    (report(conclusion="Yes."), "too-short", "conclusion"),
    (report(measurement="It was larger for the wider network, each time."), "no-number", ""),
    (report(conclusion=PREDICTION), "copied", "the conclusion says the same as the prediction"),
    (report(conclusion=MEASUREMENT), "copied", "the conclusion says the same as the measurement"),
    (report(measurement=[88, 117]), "wrong-type", "the measurement"),
    (report() | {"hypothesis": "it grows"}, "wrong-type", "not 'hypothesis'"),
    (QUESTION, "wrong-type", "expected a dict"),
):
    wrong("own_experiment", bug, says=says)(incomplete)
