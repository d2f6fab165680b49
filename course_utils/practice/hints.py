"""One hint for every name that a judge can give a bug: what to look at next, never the solution.

An exercise may say more than this: `@exercise("name", hints={...})`. Code in a hint stands between backticks.
"""

HINTS = {
    "not-attempted": "Write the body of the function, then run its cell again: the verdict says what your code did.",
    "not-a-function": 'Pass the function itself, without parentheses: `check("train", train)`.',
    "wrong-type": "Read in the task what the function returns, and look at what yours returned.",
    "raises": "Print the values that the line above uses: what type are they, and what do they hold?",
    "no-set-up": "After a restart the kernel knows nothing. Run the set-up cell at the top, then this cell again.",
    "interrupted": "Run the cell again when you are ready. Nothing of this run is left.",
    "notebook-solution": "Run All also runs the solution. The cell with your own function has to run after that.",
    "another-loop": "Go back to the code that was given, with Undo, and change only the line that is wrong.",
    "endless": "Which line should end the loop, and which value has to change before it can?",
    "wrong-value": "Take the smallest case named above, work it out by hand, and print each intermediate value.",
    "nan": "Which division can be 0/0 here? A mean over nothing is NaN, and 0 times NaN is still NaN.",
    "stale-gradients": "Which line empties `.grad`, and is it reached before the first backward pass of every window?",
    "discarded-gradients": "Which calls run between a `backward()` and the next `step()`? Does one zero `.grad`?",
    "empty-step": "What is in `.grad` when `step()` runs? Print it just before.",
    "leftover-gradients": "What happens to the last micro-batches if their number is not a multiple of N?",
    "irregular-window": "Count the micro-batches before each step, and look at the first count and the last.",
    "loss-scale": "Compare the factor with the number of micro-batches in that window.",
    "token-weights": "Does every sample, or token, count the same? A mean of means favours small micro-batches.",
    "held-graphs": "When can the activations of a micro-batch be freed? Only after `backward()` has used them.",
    "clip-timing": "Of which gradient should the norm be limited: a micro-batch's, or the window's?",
    "scaler-timing": "Each window needs one `unscale_()` and one `update()`, both after its last backward pass.",
    "scheduler-cadence": "Count the scheduler's steps and the optimizer's. They should alternate.",
    "foreign-gradients": "Which losses reach these parameters, and which of them does this optimizer belong to?",
    "orphan-parameters": "Compare the parameters that receive gradients with those that the optimizer holds.",
    "sync-cadence": "On which micro-batch of a window do the ranks have to agree?",
}
