"""A training script of TensorFlow 1's time, written for Horovod as it was then; tests run it."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

import spark_estimator.tensorflow as hvd


def batches():
    random = np.random.RandomState(hvd.rank())
    while True:
        inputs = random.normal(size=(32, 2)).astype("float32")
        yield inputs, inputs @ np.array([2.0, -1.0], "float32")


def main(folder):
    hvd.init()
    inputs = tf.placeholder(tf.float32, [None, 2], name="inputs")
    targets = tf.placeholder(tf.float32, [None], name="targets")
    weights = tf.get_variable("weights", [2], initializer=tf.random_normal_initializer(seed=hvd.rank()))
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(inputs, weights) - targets))

    opt = tf.train.AdagradOptimizer(0.25 * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)

    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=200 // hvd.size()),
        tf.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=50),
    ]

    read = weights.read_value()
    with tf.control_dependencies([train_op]):  # else the step may be read before it is counted
        read_after, step_after = weights.read_value(), global_step.read_value()
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    checkpoint_dir = folder if hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as session:
        data = ({inputs: features, targets: labels} for features, labels in batches())
        trained, step = session.run([read, global_step], feed_dict=next(data))
        while not session.should_stop():
            trained, step = session.run([read_after, step_after], feed_dict=next(data))
    return [float(value) for value in trained], int(step)


if __name__ == "__main__":
    print(main(os.environ.get("CHECKPOINTS", "checkpoints")))
