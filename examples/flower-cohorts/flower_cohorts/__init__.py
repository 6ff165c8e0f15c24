"""flower-cohorts: a Flower app in which SimClust says who trains."""
