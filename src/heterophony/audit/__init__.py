"""What somebody who sees all that travels can see of the data: images, from gradients."""
