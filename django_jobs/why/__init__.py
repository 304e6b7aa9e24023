"""Why a job is not running: evaluates each gate on its way to a worker. Changes nothing."""
